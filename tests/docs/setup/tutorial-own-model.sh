# The program that the tutorial builds is in the build folder.
ln -s "$WIND" wind
cp share/example/wind.ini .
