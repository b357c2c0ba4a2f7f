# The program that the page builds is in the build folder.
ln -s "$GRAPH" graph
cp share/example/graph.ini .
