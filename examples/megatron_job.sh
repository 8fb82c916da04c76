#!/bin/bash
# Llama 3 8B on two nodes of eight devices, as a launch script states it.
GPUS_PER_NODE=8
NODES=2
DISTRIBUTED_ARGS="--nproc-per-node $GPUS_PER_NODE --nnodes $NODES"
MODEL_ARGS=(
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
  --group-query-attention --num-query-groups 8 --swiglu --disable-bias-linear
  --normalization RMSNorm --position-embedding-type rope
  --untie-embeddings-and-output-weights --vocab-size 128256
  --seq-length 4096 --max-position-embeddings 8192
  --attention-dropout 0 --hidden-dropout 0
)
TRAINING_ARGS=(
  --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --sequence-parallel
  --micro-batch-size 1 --global-batch-size 64 --bf16 --use-distributed-optimizer
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
  --lr 3e-4 --train-iters 1000 --mock-data
)
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py "${MODEL_ARGS[@]}" "${TRAINING_ARGS[@]}"
