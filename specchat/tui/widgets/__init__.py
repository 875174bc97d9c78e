"""Parts of the screen. They show what they are given and know nothing of engine or history."""
