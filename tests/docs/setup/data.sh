# The table of the example: three kinds of flowers that differ in their numbers.
python3 - <<'PY'
import random
draw = random.Random(1)
with open("iris.csv", "w") as table:
    table.write("sepal_length,sepal_width,petal_length,petal_width,species\n")
    for kind, (name, petal) in enumerate([("setosa", 1.4), ("versicolor", 4.2), ("virginica", 5.5)] * 50):
        numbers = [5 + petal / 4, 3.2 - petal / 20, petal, petal / 3]
        table.write(",".join(f"{draw.gauss(mean, 0.2):.1f}" for mean in numbers) + f",{name}\n")
PY
head -c 5000 share/data/words.txt >book.txt
