"""The main job, end to end: a small network learns handwritten digits while a lossy switch sums its gradients.

`launch` starts everything as child processes and ends in a verdict; `worker` is one rank of the training; `rack` is the
switch with its controller; `sums` checks every sum bit for bit; `report` turns the numbers into a table.
"""
