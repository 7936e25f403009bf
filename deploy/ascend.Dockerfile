# vllm-xyserve on vllm-ascend's public image. From the project's root:
#
#   docker build -f deploy/ascend.Dockerfile -t vllm-xyserve-ascend .
#   docker run --rm -it --device /dev/davinci0 --device /dev/davinci_manager \
#     --device /dev/devmm_svm --device /dev/hisi_hdc \
#     -v /usr/local/dcmi:/usr/local/dcmi -v /usr/local/bin/npu-smi:/usr/local/bin/npu-smi \
#     -v /usr/local/Ascend/driver:/usr/local/Ascend/driver \
#     vllm-xyserve-ascend vllm serve MODEL --platform xyserve
#
# The image has vLLM 0.23.0, vllm-ascend 0.23.0, torch 2.10 with torch_npu, and CANN. None of it is
# replaced: the plugin is installed without dependencies that could be.
ARG BASE=quay.io/ascend/vllm-ascend:v0.23.0
FROM ${BASE}

COPY . /opt/vllm-xyserve
WORKDIR /opt/vllm-xyserve
# The CPU library is of no use here; the planner's helper is built if a compiler is there.
RUN python3 -m pip install --no-cache-dir "scikit-build-core>=1.0,<2" ninja numpy packaging pyyaml \
    && python3 -m pip install --no-cache-dir --no-deps --no-build-isolation .
# Without a usable compiler the image still works, on vllm-ascend's kernels; the log says so.
RUN bash -c 'source /usr/local/Ascend/ascend-toolkit/set_env.sh && python3 -m deploy.build_ascend' \
    || echo "built without the Ascend C library"
WORKDIR /workspace
