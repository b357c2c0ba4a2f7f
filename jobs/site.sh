# What a site may need to change, read by every job script in this folder. The lines for Slurm itself are at the top of each
# *.sbatch. What is set in the environment wins: LOCKSTEP_LAUNCHER=mpirun sbatch ...
# shellcheck shell=bash disable=SC2034  # used by launch.sh

# The modules that lockstep was built with: the ranks must find the same MPI and HDF5.
# module load gcc/12 openmpi hdf5/1.14

# The program: on PATH, or the one built in this repository.
lockstep=${LOCKSTEP:-lockstep}

# Who starts the ranks: srun, mpirun, or auto: srun where Slurm and the MPI both speak PMIx (or both PMI2), else mpirun. With
# srun itself, a job where they do not is refused: every rank would take itself for the only one.
launcher=${LOCKSTEP_LAUNCHER:-auto}

# srun's --mpi=, where auto is wrong: pmix, a version as in pmix_v4, pmi2, cray_shasta (see srun --mpi=list).
srun_mpi=${LOCKSTEP_SRUN_MPI:-}

# Binding of ranks: cores keeps a rank on its cores and so near its memory; none where the site binds by itself, or where the
# network library wants to run its threads anywhere: then ranks do not bind their threads, either.
export LOCKSTEP_BIND=${LOCKSTEP_BIND:-cores}
bind=$LOCKSTEP_BIND

# How ranks under srun --mpi=pmix wait for one another in MPI_Init. Slurm's default is a tree where there is no data, and since 20.11 that
# waits for nobody on fewer nodes than its TreeWidth: now and then a rank dies of what another sends too early. A ring waits for all.
export SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-ring}

# Further flags of srun or mpirun.
launcher_flags=${LOCKSTEP_LAUNCHER_FLAGS:-}

# Where logs go: a file per job and node, appended to after a requeue. Must be seen by all nodes.
log_directory=${LOCKSTEP_LOGS:-logs}

# Look at every node before ranks start, for at most so many seconds: a node that is broken ends the start with its name
# instead of an hour of training. 0: do not look.
health_check_s=${LOCKSTEP_HEALTH_CHECK_S:-120}

# How long mpirun may outlive the last rank of its own node: for a node that is cut off it would wait a quarter of an hour.
launcher_grace_s=${LOCKSTEP_LAUNCHER_GRACE_S:-60}

# How often a job puts itself back into the queue, and after how many starts in a row without a newer checkpoint it gives up.
max_restarts=${LOCKSTEP_MAX_RESTARTS:-100}
max_stalled=${LOCKSTEP_MAX_STALLED:-3}

# HDF5 locks files by flock(), which many parallel file systems lack or refuse. A run directory has a lock of its own.
export HDF5_USE_FILE_LOCKING=${HDF5_USE_FILE_LOCKING:-FALSE}

# The network between nodes, where MPI picks the wrong one.
# export OMPI_MCA_btl_tcp_if_include=ib0 UCX_NET_DEVICES=mlx5_0:1

# Threads of a rank are set by train.threads; libraries must not start more.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

# Pinned memory of fast networks; some nodes start with little.
ulimit -l unlimited 2>/dev/null || true
