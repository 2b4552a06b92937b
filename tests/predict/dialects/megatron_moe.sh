#!/usr/bin/env bash
# A mixture of experts, 8 experts of which 2 are visited, on two nodes; everything in one string.
OPTIONS=" \
  --tensor-model-parallel-size 2 \
  --pipeline-model-parallel-size 2 \
  --expert-model-parallel-size 4 \
  --expert-tensor-parallel-size 1 \
  --sequence-parallel \
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \
  --num-attention-heads 32 --group-query-attention --num-query-groups 8 \
  --num-experts 8 --moe-router-topk 2 --moe-grouped-gemm --moe-token-dispatcher-type alltoall \
  --seq-length 4096 --max-position-embeddings 32768 \
  --micro-batch-size 1 --global-batch-size 256 \
  --use-distributed-optimizer --bf16"
python -m torch.distributed.run --nproc-per-node=8 --nnodes=2 pretrain_gpt.py $OPTIONS
