//! The image of a task.

use std::path::{Component, Path};

use switchyard_core::image::ImageReference;
use switchyard_core::{Error, Result};

use super::request::TaskRequest;
use crate::plan::ImageRequest;

/// The image, and how to obtain it.
pub(super) fn image_request(request: &TaskRequest<'_>) -> Result<ImageRequest> {
    let options = request.options;
    let config = &request.session.config;
    // The docker driver accepts this prefix, as people copy it from their browser.
    let reference = options
        .image
        .strip_prefix("https://")
        .unwrap_or(&options.image);
    if reference.is_empty()
        || reference
            .chars()
            .any(|c| c.is_whitespace() || c.is_control())
    {
        return Err(Error::invalid(
            "image",
            format!("{:?} names no image", options.image),
        ));
    }
    let load = match options.load.as_str() {
        "" => None,
        path => Some(relative_path("load", path)?),
    };
    Ok(ImageRequest {
        reference: reference.to_owned(),
        always: load.is_none() && (options.force_pull || is_mutable_tag(reference)),
        load,
        timeout: options
            .image_pull_timeout
            .unwrap_or(config.image_pull_timeout),
        activity_timeout: config.pull_activity_timeout,
        credentials: options.auth.clone(),
        soft_fail: options.auth_soft_fail,
    })
}

/// Returns whether a registry may serve another image under this name later: its tag is `latest` or absent.
/// False for a text that is not a reference, such as the id of an image: no registry serves that.
fn is_mutable_tag(reference: &str) -> bool {
    let is_mutable = |reference: ImageReference| {
        reference.digest().is_none() && reference.tag() == Some("latest")
    };
    reference.parse().is_ok_and(is_mutable)
}

/// A relative path that does not leave its base directory.
fn relative_path(field: &str, path: &str) -> Result<String> {
    let inside = Path::new(path)
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if inside {
        Ok(path.to_owned())
    } else {
        Err(Error::invalid(
            field,
            format!("{path:?} is not in the task's local directory"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_tag_is_mutable_if_latest_or_missing() {
        for reference in [
            "busybox",
            "busybox:latest",
            "reg.test:5000/a/b",
            "reg.test:5000/a/b:latest",
        ] {
            assert!(is_mutable_tag(reference), "{reference}");
        }
        let digest = format!("sha256:{}", "0".repeat(64));
        for reference in [
            "busybox:1",
            "reg.test:5000/a:1",
            "a@sha256:00",
            "a:latest@sha256:00",
            &digest[7..],
        ] {
            assert!(!is_mutable_tag(reference), "{reference}");
        }
        for reference in [format!("a@{digest}"), format!("a:latest@{digest}")] {
            assert!(!is_mutable_tag(&reference), "{reference}");
        }
    }

    #[test]
    fn image_archive_is_in_the_task_directory() {
        assert_eq!(
            relative_path("load", "images/a.tar").unwrap(),
            "images/a.tar"
        );
        for path in ["../a.tar", "/a.tar", "a/../../b"] {
            assert!(relative_path("load", path).is_err(), "{path}");
        }
    }
}
