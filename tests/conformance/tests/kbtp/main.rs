//! The rules of KBTP, one file for each part of the documents.

#[cfg(test)]
mod tests;
