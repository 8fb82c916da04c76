"""trainwright: exact plans for training large models on many accelerators."""
