//! The listener for metrics and health alone, beyond loopback with TLS and clients that are known.

use std::path::PathBuf;

use switchyard_operator::admin::{self, AdminPages, Hosts};

use super::{Daemon, ServeError, listen};
use crate::credentials::MetricsCredentials;

impl Daemon {
    /// Serves the metrics listener, if one is configured; returns the file with its address.
    pub(super) fn serve_metrics(
        &self,
        pages: &AdminPages,
        credentials: &MetricsCredentials,
    ) -> Result<Option<PathBuf>, ServeError> {
        let Some(address) = self.config.admin.metrics_listen else { return Ok(None) };
        let fail = |source| ServeError::MetricsListener { address, source };
        let listener = listen(address).map_err(fail)?;
        let bound = listener.local_addr().map_err(fail)?;
        let MetricsCredentials { certificate, token } = credentials.clone();
        let router = pages.metrics_router(token);
        let limits = admin::Limits::from(&self.config.admin);
        let hosts = Hosts::of(bound, &self.config.admin.hosts);
        tracing::info!(%bound, tls = certificate.is_some(), "metrics are served");
        match certificate {
            Some(certificate) => {
                self.spawn("metrics https", admin::serve_tls(listener, certificate, router, hosts, limits))
            }
            None => self.spawn("metrics http", admin::serve(listener, router, hosts, limits)),
        }
        Ok(Some(self.write_address("metrics.addr", bound)))
    }
}
