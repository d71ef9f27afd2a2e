//! Two ends over loopback in one process.

#[cfg(test)]
mod tests;
