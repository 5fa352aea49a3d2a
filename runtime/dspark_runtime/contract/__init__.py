"""What the builder and the runtime agree on: errors, tensor names, the bundle manifest.

The builder (`dspark_trt`) may import this sub-package and nothing else of the runtime;
the runtime imports nothing of the builder.
"""
