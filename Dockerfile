# CPU:  docker build -t counterpoint .
# CUDA: docker build -t counterpoint --build-arg BASE=nvidia/cuda:12.8.1-base-ubuntu24.04 --build-arg TORCH=cu128 .
# Then: docker run --rm --user "$(id -u)" -e HOME=/tmp -v "$PWD:/work" counterpoint demo     (CUDA: --gpus all)
ARG BASE=ubuntu:24.04
FROM ${BASE}

# Which build of PyTorch: cpu, cu126, cu128, ...
ARG TORCH=cpu

ENV DEBIAN_FRONTEND=noninteractive \
    MUJOCO_GL=egl \
    PATH=/opt/counterpoint/bin:$PATH

# Python, and Mesa, which renders dm_control's frames without a display. Ubuntu removes old versions, so none is pinned.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
      ca-certificates libegl1 libgl1-mesa-dri libosmesa6 python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /source
COPY . .

# uv selects PyTorch's build for the device; the last line computes a reference value
RUN python3 -m venv /opt/counterpoint \
    && pip install --no-cache-dir uv==0.13.9 \
    && UV_TORCH_BACKEND=${TORCH} uv pip install --no-cache --python /opt/counterpoint/bin/python ".[all]" \
    && counterpoint objectives adnce

RUN useradd --uid 1001 --create-home user && mkdir /work && chown user /work
USER 1001
WORKDIR /work
ENTRYPOINT ["counterpoint"]
CMD ["--help"]
