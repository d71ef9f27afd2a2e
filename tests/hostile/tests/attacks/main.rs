//! Attacks, one file for each kind.

#[cfg(test)]
mod tests;
