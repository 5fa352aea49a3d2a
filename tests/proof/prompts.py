"""24 prompts of three kinds for the proofs on the real model; written for this project."""

CHAT = (
    "Why do leaves change colour in autumn?",
    "Suggest three quiet hobbies for a rainy weekend.",
    "Write a short note thanking a neighbour for feeding my cat.",
    "What should I pack for a two-day hike in the hills?",
    "Explain to a child why the moon seems to follow our car.",
    "Describe a small bakery early in the morning.",
    "How can I remember people's names better?",
    "Give me a friendly reminder about returning library books.",
)
ARITHMETIC = (
    "A crate holds 12 jars. How many jars are in 7 crates? Show each step.",
    "Nora has 45 stickers and gives 18 to Ben. Then she buys 9 more. How many does she have?",
    "A train travels 60 km in one hour. How far does it travel in 4 hours? Show your work.",
    "Compute 25 + 17, then multiply the result by 3.",
    "A book costs $8 and a pen costs $2. What do 3 books and 5 pens cost together?",
    "There are 96 chairs in 8 equal rows. How many chairs are in each row?",
    "Tom reads 15 pages a day. How many pages does he read in two weeks?",
    "A rectangle is 9 cm long and 4 cm wide. What are its area and its perimeter?",
)
CODE = (
    "Write a Python function that returns the sum of the squares of a list of numbers.",
    "Write a Python function that checks whether a string is a palindrome.",
    "Write a Python function that counts the vowels in a sentence.",
    "Write a Python function that returns the largest of three numbers.",
    "Write a Python class Counter with methods increment and reset.",
    "Write a Python function that reverses the words of a sentence.",
    "Write a Python function that returns the first n Fibonacci numbers.",
    "Write a Python function that removes duplicates from a list and keeps the order.",
)
ALL = CHAT + ARITHMETIC + CODE
