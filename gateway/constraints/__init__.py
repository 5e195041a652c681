"""What binds output, what engines are told of it, and whether output is what was asked for."""
