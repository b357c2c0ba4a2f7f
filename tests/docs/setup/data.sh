# The table of the README under another name, and a text.
cp share/data/iris.csv iris.csv
head -c 5000 share/data/words.txt >book.txt
