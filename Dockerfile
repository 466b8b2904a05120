# The commands phalanx and phalanx-jobs with the CPU plugin, for jobs in containers and pods:
#
#   docker build --tag phalanx .
#   docker run --rm phalanx doctor
#
# Containers run as root, who owns the cache of plugins and compiled programs; mount a volume there to keep it.
FROM rust:1.95-bookworm AS build
WORKDIR /source
COPY . .
RUN cargo build --release --locked --package phalanx-cli --package phalanx-jobs --features phalanx-cli/cloud,phalanx-jobs/cloud
# pip fetches the plugin and the kernels by their hashes.
RUN apt-get update && apt-get install --yes --no-install-recommends python3-pip
ENV PHALANX_CACHE_DIR=/var/cache/phalanx
RUN target/release/phalanx plugin install cpu && target/release/phalanx plugin install kernels

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates libgomp1 libstdc++6 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /source/target/release/phalanx /source/target/release/phalanx-jobs /usr/local/bin/
COPY --from=build /var/cache/phalanx /var/cache/phalanx
ENV PHALANX_CACHE_DIR=/var/cache/phalanx
ENTRYPOINT ["phalanx"]
