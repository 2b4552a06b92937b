#!/bin/bash
#SBATCH --nodes=8
#SBATCH --gpus-per-node=8
# A dense model of 70 billion parameters on 64 GPUs: tensor inside the node, pipeline across.
export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=8
MASTER_ADDR=${MASTER_ADDR:-localhost}
MASTER_PORT=6000
NUM_NODES=${SLURM_NNODES:-8}
NODE_RANK=${SLURM_NODEID:-0}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))

CHECKPOINT_PATH=/data/checkpoints
TP=8; PP=4

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr $MASTER_ADDR
    --master_port $MASTER_PORT
)

MODEL_ARGS=(
    --num-layers 80
    --hidden-size 8192
    --ffn-hidden-size 28672
    --num-attention-heads 64
    --group-query-attention
    --num-query-groups 8
    --seq-length 4096
    --max-position-embeddings 4096
    --swiglu
    --untie-embeddings-and-output-weights
    --normalization RMSNorm
)

PARALLEL_ARGS=(
    --tensor-model-parallel-size "$TP"
    --pipeline-model-parallel-size ${PP}
    --num-layers-per-virtual-pipeline-stage 5
    --sequence-parallel
    --use-distributed-optimizer
    --overlap-grad-reduce --overlap-param-gather
)

TRAINING_ARGS="
    --micro-batch-size 1 \
    --global-batch-size 128 \
    --lr 1.5e-4 \
    --bf16
"

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${MODEL_ARGS[@]} \
    "${PARALLEL_ARGS[@]}" \
    $TRAINING_ARGS \
    --save "$CHECKPOINT_PATH"
