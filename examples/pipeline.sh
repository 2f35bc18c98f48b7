#!/bin/sh
# A pipeline whose halves need not run at the same time: sh examples/pipeline.sh [DIR]
#
# The first half leaves its lines in a queue, each a job; the second has a program do them, several at a time. It can be
# stopped, killed and started again, at any time, on the rest. DIR is a temporary directory unless you say so.
set -eu

if [ $# -gt 0 ]; then
	queue=$1
else
	queue=$(mktemp -d)
	trap 'rm -r "$queue"' EXIT
fi

# It prints the jobs' ids, which are of no interest here.
{ seq 1000000007 1000000016; echo eleven; } | pacchettino send "$queue" --lines >/dev/null

# factor(1) finds its job on its standard input. Exit status 0 is success, 75 means "again, later", and anything else that
# the job failed; what the program says on its standard error is kept as the reason. No shell has a look at any of it.
pacchettino work "$queue" --drain --threads 2 -- factor

# What failed, and why.
pacchettino ls "$queue" failed | xargs -r -n 1 pacchettino show "$queue"
