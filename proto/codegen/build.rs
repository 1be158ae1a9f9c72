//! Compiles the `.proto` files of `proto` to Rust, with Debian's `protoc`, which the build of containerd-client needs too.

use std::error::Error;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use prost::Message;
use prost_types::FileDescriptorSet;

#[path = "build/shapes.rs"]
mod shapes;

/// Fields that are behind a pointer: they are far larger than their alternatives.
const BOXED: [&str; 2] = [
    ".docker.swarmkit.v1.Assignment.item.task",
    ".docker.swarmkit.v1.TaskSpec.runtime.container",
];

/// Every file that is compiled, relative to `proto`. A new one also needs its module in `proto/src/lib.rs`.
const FILES: [&str; 29] = [
    "cri/v1/api.proto",
    "cri/v1alpha2/api.proto",
    "containerd/runc/v1/options.proto",
    "containerd/services/content/v1/content.proto",
    "containerd/services/snapshots/v1/snapshots.proto",
    "containerd/task/v2/shim.proto",
    "docker/swarmkit/v1/ca.proto",
    "docker/swarmkit/v1/dispatcher.proto",
    "docker/swarmkit/v1/logbroker.proto",
    "docker/swarmkit/v1/objects.proto",
    "docker/swarmkit/v1/specs.proto",
    "docker/swarmkit/v1/types.proto",
    "go_plugin/plugin.proto",
    "google/rpc/status.proto",
    "grpc/health/v1/health.proto",
    "kubelet/deviceplugin/v1beta1/api.proto",
    "kubelet/pluginregistration/v1/api.proto",
    "kubelet/podresources/v1/api.proto",
    "nomad/plugins/base/base.proto",
    "nomad/plugins/device/device.proto",
    "nomad/plugins/drivers/driver.proto",
    "nomad/plugins/shared/hclspec/hcl_spec.proto",
    "nomad/plugins/shared/structs/structs.proto",
    "opentelemetry/collector/trace/v1/trace_service.proto",
    "opentelemetry/common/v1/common.proto",
    "opentelemetry/resource/v1/resource.proto",
    "opentelemetry/trace/v1/trace.proto",
    "switchyard/nomad/v1/sessions.proto",
    "ttrpc/ttrpc.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    let proto = Path::new("..");
    let files: Vec<PathBuf> = FILES.iter().map(|file| proto.join(file)).collect();
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let descriptors = out.join("descriptors.bin");
    generate(&files, proto, &descriptors)?;
    let descriptors = FileDescriptorSet::decode(fs::read(descriptors)?.as_slice())?;
    fs::write(
        out.join("server_streams.rs"),
        constant(&server_streams(&descriptors)),
    )?;
    let shapes::Code { table, packages } = shapes::code(&descriptors, &BOXED)?;
    fs::write(out.join("shapes.rs"), table)?;
    for (package, impls) in packages {
        let mut file = fs::OpenOptions::new()
            .append(true)
            .open(out.join(format!("{package}.rs")))?;
        file.write_all(impls.as_bytes())?;
    }
    Ok(())
}

/// The calls of all services that answer with a stream, as `package.Service/Method`, sorted.
fn server_streams(descriptors: &FileDescriptorSet) -> Vec<String> {
    let services = descriptors.file.iter().flat_map(|file| {
        file.service
            .iter()
            .map(move |service| (format!("{}.{}", file.package(), service.name()), service))
    });
    let mut streams: Vec<_> = services
        .flat_map(|(name, service)| {
            let streams = service
                .method
                .iter()
                .filter(|method| method.server_streaming());
            streams.map(move |method| format!("{name}/{}", method.name()))
        })
        .collect();
    streams.sort();
    streams
}

/// A constant with these calls.
fn constant(streams: &[String]) -> String {
    format!(
        "/// The calls of all services that answer with a stream, as `package.Service/Method`, sorted.\n\
         pub const SERVER_STREAMS: &[&str] = &{streams:#?};\n"
    )
}

/// Writes one file of Rust for each package, and the descriptors of all files.
fn generate(files: &[PathBuf], include: &Path, descriptors: &Path) -> std::io::Result<()> {
    tonic_prost_build::configure()
        // Encoded messages are hashed to recognise a retried request, so map entries need one fixed order.
        .btree_map(".")
        // Layers pass through without being copied once more.
        .bytes(".containerd.services.content.v1.WriteContentRequest.data")
        // Credentials must not reach a log through `{:?}`; `src/redact.rs` writes these by hand.
        .skip_debug([
            ".docker.swarmkit.v1.ConfigSpec",
            ".docker.swarmkit.v1.ContainerSpec",
            ".docker.swarmkit.v1.ContainerSpec.PullOptions",
            ".docker.swarmkit.v1.EncryptionKey",
            ".docker.swarmkit.v1.IssueNodeCertificateRequest",
            ".docker.swarmkit.v1.LogMessage",
            ".docker.swarmkit.v1.SecretSpec",
            ".docker.swarmkit.v1.VolumeAssignment",
            ".runtime.v1.AuthConfig",
            ".hashicorp.nomad.plugins.base.proto.SetConfigRequest",
            ".hashicorp.nomad.plugins.drivers.proto.TaskConfig",
            ".switchyard.nomad.v1.OpenRequest",
        ])
        .boxed(BOXED[0])
        .boxed(BOXED[1])
        // These have no secrets, and would be skipped with the message that they are declared in.
        .message_attribute(
            ".docker.swarmkit.v1.ContainerSpec.DNSConfig",
            "#[derive(Debug)]",
        )
        .message_attribute(
            ".docker.swarmkit.v1.ContainerSpec.Ulimit",
            "#[derive(Debug)]",
        )
        .enum_attribute(
            ".docker.swarmkit.v1.ContainerSpec.Isolation",
            "#[derive(Debug)]",
        )
        .enum_attribute(
            ".docker.swarmkit.v1.EncryptionKey.Algorithm",
            "#[derive(Debug)]",
        )
        .codec_path("crate::codec::LeanCodec")
        .file_descriptor_set_path(descriptors)
        .compile_protos(files, &[include.to_owned()])
}
