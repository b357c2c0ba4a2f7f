# The program that the tutorial builds is in the build folder.
ln -s "$SNAKE" snake
