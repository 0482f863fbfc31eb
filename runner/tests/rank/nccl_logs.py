"""What NCCL writes of the network that it chose."""

from __future__ import annotations

POD = "sft-node-0-0:41:97 [0] NCCL INFO"
IB = f"""\
{POD} cudaDriverVersion 13000
{POD} NET/Plugin: Could not find: libnccl-net.so.
{POD} NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.3.7<0>
{POD} Using network IB
{POD} Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM
{POD} Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
{POD} Channel 01/0 : 0[0] -> 8[0] [send] via NET/IB/1(1)/GDRDMA
"""
SOCKET = f"""\
{POD} NET/IB : No device found.
{POD} NET/Socket : Using [0]eth0:10.0.3.7<0>
{POD} Using network Socket
{POD} Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0
"""
EFA = f"""\
{POD} NET/OFI Selected provider is efa, fabric is efa-direct (found 4 nics)
{POD} Using network AWS Libfabric
{POD} Channel 00/0 : 8[0] -> 0[0] [receive] via NET/AWS Libfabric/0/GDRDMA/Shared
"""
