module load

go 1.22
