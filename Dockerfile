# The workload image: a base that has python3, and the locked wheels in a venv of their own.
# `envcompare build` makes it; the context is the wheelhouse (wheels, requirements.lock, and the steps of
# containers/), so that no network is needed. Works with BuildKit and with the classic builder.
ARG BASE_IMAGE=python:3.11-slim-bookworm

# The wheels stay in this stage. What goes on lies below /image, so that the times of its folders go
# with it and the layer is the same whenever it is built.
FROM ${BASE_IMAGE} AS build
COPY . /wheelhouse
RUN PYTHONHASHSEED=0 python3 -s -B /wheelhouse/library.py /image \
 && sh /wheelhouse/install.sh /wheelhouse /opt/envcompare/venv \
 && mkdir -p /image/opt && mv /opt/envcompare /image/opt \
 && find /image -exec touch -h -d '1980-01-01 00:00:00 UTC' {} +

FROM ${BASE_IMAGE}
COPY --from=build /image /
ENV LANG=C.UTF-8 \
    PATH=/opt/envcompare/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
CMD ["python3"]
