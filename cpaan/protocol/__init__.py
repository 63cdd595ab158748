"""What a method is given and how it is judged."""
