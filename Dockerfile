# docker build -t flcog .
# docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" flcog fit -c quickstart
#
# The second line runs as you, so that runs/ belongs to you; with podman write --userns=keep-id in place of --user. Data is mounted, too:
# -v DATA:/data and --data.data_dir /data. The versions are those of requirements.lock, checked by their hashes. --build-arg EXTRAS=flower adds
# Flower for docs/deployment/compose.yaml, and may replace some of them by versions that Flower allows.
FROM python:3.12-slim
ARG EXTRAS=""
RUN pip install --no-cache-dir uv && useradd --create-home flcog
WORKDIR /opt/flcog
COPY requirements.lock ./
RUN uv pip install --system --no-cache --require-hashes -r requirements.lock
COPY . .
RUN uv pip install --system --no-cache --no-deps . && if [ -n "$EXTRAS" ]; then uv pip install --system --no-cache ".[$EXTRAS]"; fi
USER flcog
ENV HOME=/tmp
WORKDIR /work
ENTRYPOINT ["flcog"]
CMD ["--help"]
