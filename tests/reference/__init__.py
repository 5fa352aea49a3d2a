"""Float64 NumPy references of the operators: one per operator, the judge of every backend.

Written from the equations with full sorts and plain loops, sharing no code and no trick with the C++.
"""
