# The operator's image, built from source.
#
#   docker build .                                        # or make image; the operator
#   docker build --build-arg EXTRAS=operator,bayes .      # with the planner of the thesis (torch)
#     --build-arg TORCH_INDEX=...                         # torch from an index of builds without CUDA
#
# The base needs glibc, Python 3.11 or newer as python3 with venv, and pip. Every package of the
# operator is a wheel that is compared with its pinned hash. deploy/image builds the same image
# without network. The image runs as any non-root user on a read-only root file system; /tmp is the
# only place it writes to (mount an emptyDir there).
ARG BASE_IMAGE=python:3.13-slim

FROM ${BASE_IMAGE} AS build
ARG EXTRAS=operator
ARG TORCH_INDEX=
# The environment gets no pip: nothing is installed at run time.
RUN python3 -m venv --without-pip /opt/archipelago
COPY constraints.txt constraints-bayes.txt deploy/image/requirements.txt /pins/
RUN python3 -m pip --python=/opt/archipelago/bin/python install --no-cache-dir --compile \
      --only-binary=:all: --require-hashes --requirement=/pins/requirements.txt
COPY pyproject.toml README.md LICENSE /source/
COPY src /source/src
COPY perfmodel /source/perfmodel
COPY planner /source/planner
COPY operator /source/operator
# What another extra adds has its version pinned and no hash: builds of torch without CUDA have others.
# The tests of numpy and scipy are left out: 48 MB. Other packages import their own.
RUN python3 -m pip --python=/opt/archipelago/bin/python install --no-cache-dir --compile \
      --constraint=/pins/constraints.txt --constraint=/pins/constraints-bayes.txt "/source[${EXTRAS}]" \
      ${TORCH_INDEX:+--extra-index-url=${TORCH_INDEX}} \
 && find /opt/archipelago/lib/python*/site-packages/numpy \
         /opt/archipelago/lib/python*/site-packages/scipy -type d -name tests -prune -exec rm -rf {} +

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="archipelago-operator" \
      org.opencontainers.image.description="From one ServingPlan to a proven LLM serving plan on mixed GPUs" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
# The published base has no byte code of its standard library, and nobody can write any at run time:
# each start, and each planner process, would compile it anew.
RUN python3 -m compileall -q -x '/(site-packages|dist-packages|tests?)/' \
      "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
COPY --from=build /opt/archipelago /opt/archipelago
# HOME: an arbitrary user has none. SAFEPATH: a file in a writable folder never becomes a module.
# DONTWRITEBYTECODE: everything was compiled above, and the root file system is read-only.
ENV PATH=/opt/archipelago/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONSAFEPATH=1
# A number, so that runAsNonRoot can be checked without reading /etc/passwd.
USER 65532:65532
ENTRYPOINT ["/opt/archipelago/bin/python", "-m", "archipelago.operator"]
