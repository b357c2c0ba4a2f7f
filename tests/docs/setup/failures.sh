lockstep prepare csv share/data/digits.csv.gz --shape 1,8,8 --out digits.h5
printf '%s\n' '[model]' 'name = mlp' 'sizes = 64 16 10' '[data]' 'train = digits.h5' '[train]' 'steps = 10' 'global_batch = 16' 'shards = 4' >mine.ini
