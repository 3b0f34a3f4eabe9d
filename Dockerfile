# The operator's image: the wheel and its [operator] dependencies, no build tools, no torch.
#
#   docker build -t archipelago-operator:0.1.0 .
#
# It runs as any non-root user, with or without an entry in /etc/passwd, on a read-only root file
# system; /tmp is the one place it may write (deploy/base mounts an emptyDir there).
ARG PYTHON_IMAGE=python:3.13-slim

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY perfmodel perfmodel
COPY planner planner
COPY operator operator
COPY src src
# The environment gets no pip of its own: nothing installs anything at run time. The libraries' own
# tests are left out: 48 MB of numpy's and scipy's.
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
 && python -m venv --without-pip /opt/archipelago \
 && wheel="$(echo /wheels/archipelago-*.whl)" \
 && python -m pip --python /opt/archipelago/bin/python install --no-cache-dir --compile \
      --constraint constraints.txt "${wheel}[operator]" \
 && find /opt/archipelago -type d -name tests -prune -exec rm -rf {} +

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="archipelago-operator" \
      org.opencontainers.image.description="From one ServingPlan to a proven LLM serving plan on mixed GPUs" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
# The published base brings its standard library without byte code, and nobody could write any here:
# each start, and each planner process, would compile it anew.
RUN python -m compileall -q -x '/(site-packages|tests?)/' \
      "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
COPY --from=build /opt/archipelago /opt/archipelago
# HOME: an arbitrary uid has none. SAFEPATH: a file in a writable folder never becomes a module.
# DONTWRITEBYTECODE: everything was compiled above and the root file system is read-only.
ENV PATH=/opt/archipelago/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONSAFEPATH=1
# A number, so that runAsNonRoot can be checked without reading /etc/passwd.
USER 65532:65532
ENTRYPOINT ["/opt/archipelago/bin/python", "-m", "archipelago.operator"]
