# docker build -t flcog . && docker run --rm -v "$PWD/runs:/work/runs" flcog fit -c quickstart
#
# The versions are those of requirements.lock, checked by their hashes. Data is mounted: -v DATA:/data and --data.data_dir /data.
FROM python:3.12-slim
RUN pip install --no-cache-dir uv && useradd --create-home flcog
WORKDIR /opt/flcog
COPY requirements.lock ./
RUN uv pip install --system --no-cache --require-hashes -r requirements.lock
COPY . .
RUN uv pip install --system --no-cache --no-deps .
USER flcog
WORKDIR /work
ENTRYPOINT ["flcog"]
CMD ["--help"]
