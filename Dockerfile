# `sirc serve` for an exported graph, on CPUs:
#
#   docker build -t sirc-serve .
#   docker run --rm -p 8000:8000 -v $PWD/model.onnx:/model.onnx:ro sirc-serve

FROM python:3.12-slim AS build
WORKDIR /src
RUN pip install --no-cache-dir uv && python -m venv /opt/venv
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
# `--torch-backend cpu` takes PyTorch's wheels for CPUs: those of the default index bring gigabytes of CUDA libraries.
RUN uv pip install --no-cache --python /opt/venv/bin/python --torch-backend cpu '.[serve]'

FROM python:3.12-slim
RUN useradd --create-home sirc
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1
USER sirc
WORKDIR /home/sirc
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/ready', timeout=4)"]
# A service that listens on 127.0.0.1 could not be reached from outside the container. Options go after the graph:
# `docker run … sirc-serve /model.onnx --max-images 16`.
ENTRYPOINT ["sirc", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["/model.onnx"]
