# The workload image: a base that has python3, and the locked wheels in a venv of their own.
# `envcompare build` makes it; the context is the wheelhouse (wheels and requirements.lock), so that
# no network is needed. Works with BuildKit and with the classic builder.
ARG BASE_IMAGE=python:3.11-slim-bookworm

# The wheels stay in this stage. Byte code is compiled once and never checked against the clock of a
# file, as in the venv of vm; compileall fails on a file made for a later Python, which does not matter.
FROM ${BASE_IMAGE} AS build
COPY . /wheelhouse
RUN python3 -I -m venv --without-pip /opt/envcompare/venv \
 && PYTHONPATH="$(echo /wheelhouse/pip-*.whl)" /opt/envcompare/venv/bin/python -m pip --isolated install --quiet \
      --no-index --find-links /wheelhouse --require-hashes --no-compile --no-cache-dir \
      --disable-pip-version-check --requirement /wheelhouse/requirements.lock \
 && cp /wheelhouse/requirements.lock /opt/envcompare/requirements.lock \
 && (/opt/envcompare/venv/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash \
      /opt/envcompare/venv/lib >/dev/null 2>&1 || true)

FROM ${BASE_IMAGE}
COPY --from=build /opt/envcompare /opt/envcompare
ENV LANG=C.UTF-8 \
    PATH=/opt/envcompare/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
CMD ["python3"]
