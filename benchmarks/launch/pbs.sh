#!/bin/bash
# Measure the hosts of a PBS job. From the directory that holds .venv:
#
#   qsub benchmarks/launch/pbs.sh                                                  # commbench bench
#   qsub -l select=4:ncpus=8:mpiprocs=2 -v ARGS="run p2p --budget standard" benchmarks/launch/pbs.sh
#
# Options of qsub's own overrule these lines; mpiprocs is the number of ranks on each host (in Torque: -l nodes=2:ppn=4).
#PBS -N commbench
#PBS -l select=2:ncpus=4:mpiprocs=4
#PBS -l walltime=01:00:00
#PBS -j oe
#
# Variables, by qsub -v: ARGS, the command and its options; VENV, the environment to use (.venv); OUT, the run directory
# (results/pbs-JOB): the same OUT resumes a run that the walltime ended.
# Out come run.json, samples.jsonl and collectives.csv in OUT, and the tables in the job's own output.
set -eu
# Edit: what your site needs to find its MPI, e.g.
# module load openmpi

cd "$PBS_O_WORKDIR"
export PATH="${VENV:-$PWD/.venv}/bin:$PATH"
out=${OUT:-results/pbs-${PBS_JOBID%%.*}}
read -ra words <<< "${ARGS:-bench}"

# The conductor finds the hosts in PBS's node file. `exec`: PBS's signals are for commbench and not for this shell.
exec commbench "${words[0]}" --out "$out" "${words[@]:1}"
