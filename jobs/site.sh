# The defaults of the settings that every job script in this folder reads. The options of Slurm are at the top of each *.sbatch. A site
# sets them in /etc/lockstep/site.sh, a user in ~/.config/lockstep/site.sh (LOCKSTEP_SITE=FILE:FILE names others): shell that is run first,
# with module commands and the names in capitals below, such as LOCKSTEP_LAUNCHER=mpirun. The environment overrides these files:
# LOCKSTEP_LAUNCHER=mpirun sbatch ... An upgrade of an installed Lockstep replaces this file, not those.
# shellcheck shell=bash disable=SC2034  # used by launch.sh

# The modules that lockstep was built with: ranks need the same MPI and HDF5.
# module load gcc/12 openmpi hdf5/1.14

# The program: on PATH, or the one built in this repository; or a command with arguments, such as "apptainer exec lockstep.sif lockstep".
lockstep=${LOCKSTEP:-lockstep}

# What starts the ranks: srun, mpirun, or auto: srun where Slurm and the MPI both speak PMIx (or both PMI2), else mpirun. srun
# refuses a job where they do not: every rank would believe that it is the only one.
launcher=${LOCKSTEP_LAUNCHER:-auto}

# srun's --mpi=, where auto is wrong: pmix, a version as in pmix_v4, pmi2, cray_shasta (see srun --mpi=list).
srun_mpi=${LOCKSTEP_SRUN_MPI:-}

# Binding of ranks: cores keeps a rank on its cores, near its memory; none where the site binds ranks, or where the
# network library runs its threads anywhere: then ranks do not bind their threads, either.
export LOCKSTEP_BIND=${LOCKSTEP_BIND:-cores}
bind=$LOCKSTEP_BIND

# How ranks under srun --mpi=pmix wait for each other in MPI_Init. Slurm's default is a tree, which since 20.11 does not wait at all on fewer
# nodes than its TreeWidth if there is no data: a rank sometimes dies of a message that another sends too early. A ring waits for all.
export SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-ring}

# Further flags of srun or mpirun.
launcher_flags=${LOCKSTEP_LAUNCHER_FLAGS:-}

# The folder of the logs, which all nodes must see: one file per job and node, continued after a requeue.
log_directory=${LOCKSTEP_LOGS:-logs}

# Check every node before ranks start, for at most this many seconds: a broken node then ends the start with its name
# instead of an hour of training. 0: no check.
health_check_s=${LOCKSTEP_HEALTH_CHECK_S:-120}

# In jobs of Slurm: a command for bash that runs once on each node before ranks start, such as one that copies data to a disk of the node. A job in
# which it fails is requeued, as after a failure.
before_ranks=${LOCKSTEP_BEFORE_RANKS:-}

# How long mpirun may outlive the last rank of its node: it would wait a quarter of an hour for a node that is cut off.
launcher_grace_s=${LOCKSTEP_LAUNCHER_GRACE_S:-60}

# How often a job requeues itself, and after how many starts in a row without a newer checkpoint it gives up.
max_restarts=${LOCKSTEP_MAX_RESTARTS:-100}
max_stalled=${LOCKSTEP_MAX_STALLED:-3}

# HDF5 locks files by flock(), which many parallel file systems lack or refuse. A run directory has its own lock.
export HDF5_USE_FILE_LOCKING=${HDF5_USE_FILE_LOCKING:-FALSE}

# The network between nodes, where MPI chooses the wrong one.
# export OMPI_MCA_btl_tcp_if_include=ib0 UCX_NET_DEVICES=mlx5_0:1

# Threads of a rank are set by train.threads; libraries must not start more.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

# Fast networks pin memory; some nodes allow little.
ulimit -l unlimited 2>/dev/null || true
