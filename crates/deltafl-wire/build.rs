//! Generates the gRPC code from the `.proto`, without a system protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let proto = "proto/deltafl/v1/federation.proto";
    println!("cargo:rerun-if-changed={proto}");
    let files = protox::compile([proto], ["proto"])?;
    // Long fields are slices of the received message, not copies.
    let build = tonic_prost_build::configure().build_transport(false).bytes(".").codec_path("crate::Codec");
    build.compile_fds(files)?;
    Ok(())
}
