# A run of the diffusion task with classes and an average.
lockstep prepare csv share/data/digits.csv.gz --shape 1,8,8 --out digits.h5
cat >run.ini <<'INI'
[model]
name = unet
image_size = 8
in_channels = 1
out_channels = 2
model_channels = 32
channel_mult = 1 1
num_res_blocks = 1
num_classes = 10
[diffusion]
variance = learned_range
class_dropout = 0.1
[data]
train = digits.h5
range = 0 16
[train]
steps = 2
global_batch = 8
shards = 2
[optimizer]
lr = 1e-4
[ema]
rates = 0.9999
INI
lockstep train run.ini --run runs/NAME
