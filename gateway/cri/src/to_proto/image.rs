//! Converts images and their disk usage.

use switchyard_core::image::Image;
use switchyard_core::stats::DiskUsage;
use switchyard_proto::cri::v1 as cri;

use super::stats::disk_usage;

/// One image.
pub(crate) fn image(image: &Image) -> cri::Image {
    let Image {
        id,
        repo_tags,
        repo_digests,
        size_bytes,
        user,
        volumes: _,
        labels: _,
        pinned,
        holders: _,
        imported: _,
        stored_at: _,
    } = image;
    let (uid, username) = user_of(user);
    cri::Image {
        id: id.to_string(),
        repo_tags: repo_tags.clone(),
        repo_digests: repo_digests.clone(),
        size: *size_bytes,
        uid,
        username,
        spec: None,
        pinned: *pinned,
    }
}

/// The user of an image's `USER` line, by id or by name; its group is not shown.
fn user_of(line: &str) -> (Option<cri::Int64Value>, String) {
    let user = line.split(':').next().unwrap_or_default();
    match user.parse() {
        Ok(value) => (Some(cri::Int64Value { value }), String::new()),
        Err(_) => (None, user.to_owned()),
    }
}

/// The disk usage of images and writable layers. Both are on the same file systems, so both lists are equal.
pub(crate) fn image_fs_info(usage: &[DiskUsage]) -> cri::ImageFsInfoResponse {
    let filesystems: Vec<_> = usage.iter().map(disk_usage).collect();
    cri::ImageFsInfoResponse {
        image_filesystems: filesystems.clone(),
        container_filesystems: filesystems,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, uid: Option<i64>, username: &str) {
        let expected = (
            uid.map(|value| cri::Int64Value { value }),
            username.to_owned(),
        );
        assert_eq!(user_of(line), expected, "{line}");
    }

    #[test]
    fn image_user_is_uid_or_name_never_both() {
        check("", None, "");
        check("1003:1004", Some(1003), "");
        check("0", Some(0), "");
        check("www-data:x", None, "www-data");
        check("www-data", None, "www-data");
    }
}
