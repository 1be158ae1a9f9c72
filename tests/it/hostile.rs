//! What clients, images and jobs may say to do harm: the daemon, the logkeeper and containerd live on, nothing that was not asked for has
//! an effect, and the client is told what is wrong.

mod connections;
