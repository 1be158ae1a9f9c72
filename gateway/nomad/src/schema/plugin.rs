//! The schema of an agent's `plugin` block: that of Nomad's docker driver, with additions.

use switchyard_proto::nomad::shared::hclspec;

use super::{FLAG, NUMBER, PAIRS, TEXT, TEXTS, attr, block, object};

/// The schema of the plugin's configuration.
pub(crate) fn plugin_schema() -> hclspec::Spec {
    object([
        // Permissions.
        attr("allow_privileged", FLAG),
        attr("allow_caps", TEXTS),
        attr("allow_devices", FLAG),
        attr("allow_security_opt", TEXTS),
        attr("allow_runtimes", TEXTS),
        attr("nvidia_runtime", TEXT),
        block(
            "allowed_modes",
            [
                attr("pid", TEXTS),
                attr("ipc", TEXTS),
                attr("userns", TEXTS),
                attr("uts", TEXTS),
                attr("network", TEXTS),
                attr("cgroupns", TEXTS),
            ],
        ),
        block(
            "volumes",
            [
                attr("enabled", FLAG),
                attr("selinuxlabel", TEXT),
                attr("driver_options", TEXTS),
            ],
        ),
        // Images.
        block("auth", [attr("config", TEXT), attr("helper", TEXT)]),
        attr("image_pull_timeout", TEXT),
        attr("pull_activity_timeout", TEXT),
        block(
            "gc",
            [
                attr("image", FLAG),
                attr("image_delay", TEXT),
                attr("container", FLAG),
                block(
                    "dangling_containers",
                    [
                        attr("enabled", FLAG),
                        attr("dry_run", FLAG),
                        attr("period", TEXT),
                        attr("creation_grace", TEXT),
                    ],
                ),
            ],
        ),
        // Tasks.
        attr("disable_log_collection", FLAG),
        attr("extra_labels", TEXTS),
        attr("pids_limit", NUMBER),
        attr("oom_score_adj", NUMBER),
        // Not in the docker driver.
        attr("must_create_network", FLAG),
        // Keys of the docker driver without an effect.
        attr("endpoint", TEXT),
        block(
            "tls",
            [attr("cert", TEXT), attr("key", TEXT), attr("ca", TEXT)],
        ),
        block("logging", [attr("type", TEXT), attr("config", PAIRS)]),
        attr("infra_image", TEXT),
        attr("infra_image_pull_timeout", TEXT),
        attr("container_exists_attempts", NUMBER),
        attr("windows_allow_insecure_container_admin", FLAG),
    ])
}
