# docker build -t fdamed .
# docker run --rm --user "$(id -u):$(id -g)" -v "$PWD":/study fdamed run
FROM python:3.11-slim
COPY envs/requirements.lock /src/envs/
RUN pip install --no-cache-dir -r /src/envs/requirements.lock
COPY pyproject.toml README.md LICENSE Snakefile /src/
COPY config /src/config
COPY envs /src/envs
COPY profiles /src/profiles
COPY workflow /src/workflow
COPY fdamed /src/fdamed
RUN pip install --no-cache-dir --no-deps /src && rm -rf /src
# Any user may run it: caches go to a folder that everybody may write to.
ENV HOME=/tmp MLFLOW_DISABLE_TELEMETRY=true
USER 1000
WORKDIR /study
ENTRYPOINT ["fdamed"]
CMD ["--help"]
