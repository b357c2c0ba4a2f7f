# The table of the README, and a text.
bash "$(dirname "$0")/README.sh"
head -c 5000 share/data/words.txt >book.txt
