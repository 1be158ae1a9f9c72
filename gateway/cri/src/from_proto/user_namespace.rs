//! Converts user namespaces and their mappings of ids.

use switchyard_core::spec::{IdMap, IdRange, UserNamespace};
use switchyard_core::{Error, Result};
use switchyard_proto::cri::v1 as cri;

use super::field::known;

/// The user namespace that a pod requests; `None` for the host's.
pub(super) fn user_namespace(
    options: Option<cri::UserNamespace>,
    field: &str,
) -> Result<Option<UserNamespace>> {
    let Some(cri::UserNamespace { mode, uids, gids }) = options else {
        return Ok(None);
    };
    match known(format_args!("{field}.mode"), mode)? {
        cri::NamespaceMode::Node if uids.is_empty() && gids.is_empty() => Ok(None),
        cri::NamespaceMode::Node => Err(Error::invalid(field, "mappings need the mode POD")),
        cri::NamespaceMode::Pod => id_maps(uids, gids, field).map(Some),
        mode @ (cri::NamespaceMode::Container | cri::NamespaceMode::Target) => Err(Error::invalid(
            format_args!("{field}.mode"),
            format!("{} is neither POD nor NODE", mode.as_str_name()),
        )),
    }
}

/// The mappings of a user namespace: exactly one range each, as Kubernetes sends.
pub(super) fn id_maps(
    uids: Vec<cri::IdMapping>,
    gids: Vec<cri::IdMapping>,
    field: &str,
) -> Result<UserNamespace> {
    let map = |name: &str, mappings: Vec<cri::IdMapping>| {
        let at = format!("{field}.{name}");
        let [
            cri::IdMapping {
                host_id,
                container_id,
                length,
            },
        ] = mappings[..]
        else {
            return Err(Error::invalid(
                at,
                format!("there must be one mapping, not {}", mappings.len()),
            ));
        };
        let range = IdRange {
            inside: container_id,
            host: host_id,
            length,
        };
        IdMap::new(vec![range]).map_err(|why| Error::invalid(at, why))
    };
    Ok(UserNamespace {
        uids: map("uids", uids)?,
        gids: map("gids", gids)?,
    })
}
