//! Wire types of the protocols Switchyard speaks, and the encodings of what is made of them.
//!
//! The modules follow the protobuf packages: [`cri::v1`] is `runtime.v1`, [`containerd::runc::v1`] is
//! `containerd.runc.v1`. The `.proto` files are our own (names and numbers are upstream's); `generated`
//! has the code that `cargo run -p switchyard-codegen` makes of them, and `UPSTREAM.md` says which versions they follow and
//! where the traps are.
//!
//! Three properties hold for every message:
//! - maps are `BTreeMap`, so equal messages encode to equal bytes and can be recognised by a hash;
//! - credentials do not show in `Debug`;
//! - fields this crate does not know are dropped when a message is decoded, as prost does. What must be kept
//!   has to be kept as bytes.
//!
//! What is received is [counted](shape) before it is decoded: a small message can become a large one in memory.
//!
//! Clients and servers accept messages up to tonic's 4 MiB unless `max_decoding_message_size` says otherwise;
//! CRI peers expect 16 MiB, and a manager of a swarm may send more than 4 MiB.

/// Includes a file of generated code.
macro_rules! generated {
    ($name:literal) => {
        include!(concat!("../generated/", $name, ".rs"));
    };
}

pub mod codec;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod record;
mod redact;
pub mod shape;

generated!("server_streams");
generated!("shapes");

pub mod cri {
    //! The Container Runtime Interface of Kubernetes.

    pub mod v1 {
        //! CRI v1, package `runtime.v1`, as of Kubernetes 1.37.
        #![allow(
            missing_docs,
            unused_qualifications,
            clippy::allow_attributes_without_reason,
            clippy::too_many_lines,
            reason = "generated code, whose form belongs to prost and tonic; its docs are the comments of the \
                      .proto file, which leaves out what a name says by itself"
        )]

        generated!("runtime.v1");
    }

    pub mod v1alpha2 {
        //! CRI v1alpha2 with PouchContainer's additions, package `runtime.v1alpha2`, as of Kubernetes 1.25. Messages without
        //! additions are those of [`v1`](super::v1).
        #![allow(
            missing_docs,
            unused_qualifications,
            clippy::allow_attributes_without_reason,
            clippy::too_many_lines,
            reason = "generated code, whose form belongs to prost and tonic"
        )]

        generated!("runtime.v1alpha2");
    }
}

pub mod containerd {
    //! Messages of containerd's own clients that no generated client has, and messages that it passes through
    //! to its shims.

    pub mod runc {
        //! The shim that serves runc and crun.

        pub mod v1 {
            //! Shim options, package `containerd.runc.v1`, as of containerd 2.x.

            generated!("containerd.runc.v1");
        }
    }

    pub mod services {
        //! Calls of containerd's services.
        #![allow(
            missing_docs,
            unused_qualifications,
            clippy::allow_attributes_without_reason,
            reason = "generated code, whose form belongs to prost and tonic"
        )]

        pub mod content {
            //! The content store.

            pub mod v1 {
                //! Writing of blobs without copies, package `containerd.services.content.v1`, as of containerd 2.3.

                generated!("containerd.services.content.v1");
            }
        }

        pub mod snapshots {
            //! The snapshotters.

            pub mod v1 {
                //! Committing onto a parent, package `containerd.services.snapshots.v1`, as of containerd 2.3.

                generated!("containerd.services.snapshots.v1");
            }
        }
    }

    pub mod task {
        //! Requests to shims.

        pub mod v2 {
            //! Further processes, package `containerd.task.v2`, as of containerd 1.6. Version 3, of containerd 2.x, has the same
            //! messages for them.
            #![allow(
                missing_docs,
                clippy::allow_attributes_without_reason,
                reason = "generated code, whose form belongs to prost; a name says what a field is"
            )]

            generated!("containerd.task.v2");
        }
    }
}

pub mod docker {
    //! Messages between the nodes of a Docker swarm and their managers.

    pub mod swarmkit {
        //! The part of SwarmKit's API that agents use.

        pub mod v1 {
            //! Package `docker.swarmkit.v1`, as of SwarmKit 2.1. Managers from Docker 20.10 on read the same numbers.
            #![allow(
                missing_docs,
                unused_qualifications,
                clippy::allow_attributes_without_reason,
                clippy::too_many_lines,
                reason = "generated code, whose form belongs to prost and tonic; its docs are the comments of the .proto \
                          files"
            )]

            generated!("docker.swarmkit.v1");
        }
    }
}

pub mod kubelet {
    //! Messages between kubelets and their device plugins, as of Kubernetes 1.37.
    #![allow(
        missing_docs,
        unused_qualifications,
        clippy::allow_attributes_without_reason,
        clippy::too_many_lines,
        reason = "generated code, whose form belongs to prost and tonic; its docs are the comments of the .proto files"
    )]

    pub mod device_plugin {
        //! Device plugins.

        pub mod v1beta1 {
            //! Registration, and what a plugin is asked, package `v1beta1`.

            generated!("v1beta1");
        }
    }

    pub mod plugin_registration {
        //! A kubelet's questions to a plugin whose socket it has found, package `pluginregistration`.

        generated!("pluginregistration");
    }

    pub mod pod_resources {
        //! A kubelet's report of the resources of its pods.

        pub mod v1 {
            //! The listing, package `v1`.

            generated!("v1");
        }
    }
}

pub mod nomad {
    //! Messages between Nomad agents and their plugins, as of Nomad 2.0: the packages below
    //! `hashicorp.nomad.plugins`.
    #![allow(
        missing_docs,
        unused_qualifications,
        clippy::allow_attributes_without_reason,
        clippy::too_many_lines,
        reason = "generated code, whose form belongs to prost and tonic; its docs are the comments of the .proto files"
    )]

    pub mod base {
        //! Every plugin.

        pub mod proto {
            //! A plugin's description and configuration.

            generated!("hashicorp.nomad.plugins.base.proto");
        }
    }

    pub mod device {
        //! Device plugins.

        generated!("hashicorp.nomad.plugins.device");
    }

    pub mod drivers {
        //! Task drivers.

        pub mod proto {
            //! The tasks of an agent.

            generated!("hashicorp.nomad.plugins.drivers.proto");
        }
    }

    pub mod shared {
        //! Messages that the others share.

        pub mod hclspec {
            //! Schemas of configurations.

            generated!("hashicorp.nomad.plugins.shared.hclspec");
        }

        pub mod structs {
            //! Attributes, statistics and the detail of an error.

            generated!("hashicorp.nomad.plugins.shared.structs");
        }
    }
}

pub mod go_plugin {
    //! The services that every plugin of go-plugin has, package `plugin`.
    #![allow(
        missing_docs,
        unused_qualifications,
        clippy::allow_attributes_without_reason,
        reason = "generated code, whose form belongs to prost and tonic"
    )]

    generated!("plugin");
}

pub mod google {
    //! Types that gRPC itself lacks.

    pub mod rpc {
        //! Details of a status, package `google.rpc`.
        #![allow(
            missing_docs,
            clippy::allow_attributes_without_reason,
            reason = "generated code, whose form belongs to prost; a name says what a field is"
        )]

        generated!("google.rpc");
    }
}

pub mod grpc {
    //! Services that gRPC servers offer beside their own.

    pub mod health {
        //! The health check of a server.

        pub mod v1 {
            //! Package `grpc.health.v1`.
            #![allow(
                missing_docs,
                unused_qualifications,
                clippy::allow_attributes_without_reason,
                clippy::too_many_lines,
                reason = "generated code, whose form belongs to prost and tonic"
            )]

            generated!("grpc.health.v1");
        }
    }
}

pub mod opentelemetry {
    //! Messages to collectors of traces: OTLP 1.x, the packages below `opentelemetry`.
    #![allow(
        missing_docs,
        unused_qualifications,
        clippy::allow_attributes_without_reason,
        reason = "generated code, whose form belongs to prost and tonic; its docs are the comments of the .proto files"
    )]

    pub mod proto {
        //! All of it.

        pub mod collector {
            //! The export calls.

            pub mod trace {
                //! Traces.

                pub mod v1 {
                    //! Their service.

                    generated!("opentelemetry.proto.collector.trace.v1");
                }
            }
        }

        pub mod common {
            //! Types that all signals share.

            pub mod v1 {
                //! Attributes.

                generated!("opentelemetry.proto.common.v1");
            }
        }

        pub mod resource {
            //! The sender of the data.

            pub mod v1 {
                //! Attributes of the sender.

                generated!("opentelemetry.proto.resource.v1");
            }
        }

        pub mod trace {
            //! Traces.

            pub mod v1 {
                //! Spans.

                generated!("opentelemetry.proto.trace.v1");
            }
        }
    }
}

pub mod switchyard {
    //! Messages between parts of Switchyard.

    pub mod nomad {
        //! Launchers and the daemon.

        pub mod v1 {
            //! Sessions, package `switchyard.nomad.v1`.
            #![allow(
                missing_docs,
                unused_qualifications,
                clippy::allow_attributes_without_reason,
                reason = "generated code, whose form belongs to prost and tonic"
            )]

            generated!("switchyard.nomad.v1");
        }
    }
}

pub mod ttrpc {
    //! Content of the frames of ttrpc, which shims speak.
    #![allow(
        missing_docs,
        clippy::allow_attributes_without_reason,
        reason = "generated code, whose form belongs to prost; a name says what a field is"
    )]

    generated!("ttrpc");
}
