//! Polynomials over GF(2) modulo the Castagnoli polynomial, in reflected form: bit 31 is x^0, bit 0 is x^31.
//! All of it is `const`, so that the constants of the other files are computed and not quoted.

/// The Castagnoli polynomial 0x1EDC6F41, reflected, without its x^32.
pub(super) const POLY: u32 = 0x82f6_3b78;

/// One: x^0.
const ONE: u32 = 1 << 31;

/// `a * x`.
const fn times_x(a: u32) -> u32 {
    (a >> 1) ^ if a & 1 == 1 { POLY } else { 0 }
}

/// `a * b`.
pub(super) const fn mul(mut a: u32, b: u32) -> u32 {
    let mut product = 0;
    let mut bit = ONE;
    while bit != 0 {
        if b & bit != 0 {
            product ^= a;
        }
        a = times_x(a);
        bit >>= 1;
    }
    product
}

/// `x^n`.
pub(super) const fn x_pow(mut n: u64) -> u32 {
    let mut result = ONE;
    let mut square = times_x(ONE);
    while n != 0 {
        if n & 1 == 1 {
            result = mul(result, square);
        }
        square = mul(square, square);
        n >>= 1;
    }
    result
}

/// `x^(8n)`: what appending `n` octets multiplies a CRC by. The order of x divides 2^31 - 1 (the polynomial is x + 1
/// times a primitive one of degree 31), so that the exponent may be reduced before it overflows.
pub(super) const fn x_pow_octets(n: u64) -> u32 {
    const ORDER: u64 = (1 << 31) - 1;
    x_pow((n % ORDER) * 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_x() {
        assert_eq!(x_pow((1 << 31) - 1), ONE);
        assert_eq!(x_pow(32), POLY);
    }
}
