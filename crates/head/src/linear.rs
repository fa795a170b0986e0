//! Linear algebra in f64 for the directions of a screen: the eigenvectors of a symmetric matrix, a Cholesky
//! factor, an inverse.
//!
//! Matrices are square, row after row. What comes out steers how small a screen's bounds are, and whatever
//! comes out is measured before a bound rests on it; so no function here promises a precision.

/// Rotations that one eigenvalue may take.
const MOST_STEPS: usize = 60;

/// Returns the lower triangular matrix that, times its transpose, is the matrix; `None` if the matrix is not
/// positive.
pub(crate) fn cholesky(mut a: Vec<f64>, n: usize) -> Option<Vec<f64>> {
    for i in 0..n {
        let (above, row) = a.split_at_mut(i * n);
        for j in 0..i {
            let other = &above[j * n..=j * n + j];
            let sum: f64 = (0..j).map(|k| row[k] * other[k]).sum();
            row[j] = (row[j] - sum) / other[j];
        }
        let left = row[i] - row[..i].iter().map(|x| x * x).sum::<f64>();
        if !(left > 0.0 && left.is_finite()) {
            return None;
        }
        row[i] = left.sqrt();
        row[i + 1..n].fill(0.0);
    }
    Some(a)
}

/// Solves `x L = row` for a lower triangular matrix, where the row lies.
pub(crate) fn solve_behind(row: &mut [f64], lower: &[f64]) {
    let n = row.len();
    for j in (0..n).rev() {
        let factors = &lower[j * n..=j * n + j];
        row[j] /= factors[j];
        let x = row[j];
        row[..j].iter_mut().zip(factors).for_each(|(left, factor)| *left -= x * factor);
    }
}

/// Returns the inverse of a matrix; `None` if it has none, as far as f64 can tell.
pub(crate) fn inverse(mut a: Vec<f64>, n: usize) -> Option<Vec<f64>> {
    let mut out = identity(n);
    for column in 0..n {
        let pivot = (column..n).max_by(|i, j| a[i * n + column].abs().total_cmp(&a[j * n + column].abs()))?;
        let value = a[pivot * n + column];
        if !(value.abs() > 0.0 && value.is_finite()) {
            return None;
        }
        for matrix in [&mut a, &mut out] {
            if pivot != column {
                let (above, below) = matrix.split_at_mut(pivot * n);
                above[column * n..][..n].swap_with_slice(&mut below[..n]);
            }
            matrix[column * n..][..n].iter_mut().for_each(|x| *x /= value);
        }
        let (row, row_out) = (a[column * n..][..n].to_vec(), out[column * n..][..n].to_vec());
        for i in (0..n).filter(|i| *i != column) {
            let factor = a[i * n + column];
            if factor != 0.0 {
                subtract(&mut a[i * n..][..n], factor, &row);
                subtract(&mut out[i * n..][..n], factor, &row_out);
            }
        }
    }
    Some(out)
}

/// Returns the identity.
pub(crate) fn identity(n: usize) -> Vec<f64> {
    let mut out = vec![0.0; n * n];
    (0..n).for_each(|i| out[i * n + i] = 1.0);
    out
}

/// Returns the transpose of a matrix of `rows` rows.
pub(crate) fn transpose(a: &[f64], rows: usize) -> Vec<f64> {
    let columns = a.len() / rows;
    let mut out = vec![0.0; a.len()];
    for (i, row) in a.chunks(columns).enumerate() {
        row.iter().enumerate().for_each(|(j, x)| out[j * rows + i] = *x);
    }
    out
}

/// Makes the rows of a matrix orthogonal and of length 1; returns whether they were independent enough.
pub(crate) fn orthonormalise(a: &mut [f64], n: usize) -> bool {
    for i in 0..n {
        let (above, row) = a.split_at_mut(i * n);
        let row = &mut row[..n];
        // Once more: what the first round leaves is as small as its roundings.
        for _ in 0..2 {
            for other in above.chunks(n) {
                let along = dot(row, other);
                subtract(row, along, other);
            }
        }
        let length = dot(row, row).sqrt();
        // NaN is not either.
        let is_independent = length > 1e-6;
        if !is_independent {
            return false;
        }
        row.iter_mut().for_each(|x| *x /= length);
    }
    true
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn subtract(row: &mut [f64], factor: f64, other: &[f64]) {
    row.iter_mut().zip(other).for_each(|(x, y)| *x -= factor * y);
}

/// Returns the eigenvalues of a symmetric matrix, and the eigenvector of each as a row; `None` if they are
/// not found in a number of steps that suffices for finite numbers.
pub(crate) fn eigen(mut a: Vec<f64>, n: usize) -> Option<(Vec<f64>, Vec<f64>)> {
    let (mut diagonal, mut beside, basis) = tridiagonal(&mut a, n);
    let mut vectors = transpose(&basis, n);
    let (mut high, mut steps) = (n - 1, 0);
    while high > 0 {
        let is_small = |k: usize, diagonal: &[f64], beside: &[f64]| {
            beside[k].abs() <= f64::EPSILON * (diagonal[k].abs() + diagonal[k + 1].abs())
        };
        if is_small(high - 1, &diagonal, &beside) {
            (high, steps) = (high - 1, 0);
            continue;
        }
        let low = (0..high - 1).rev().find(|k| is_small(*k, &diagonal, &beside)).map_or(0, |k| k + 1);
        steps += 1;
        if steps > MOST_STEPS {
            return None;
        }
        // The eigenvalue of the last two rows that is nearer to the last element.
        let (half, last) = ((diagonal[high - 1] - diagonal[high]) / 2.0, beside[high - 1]);
        let root = (half * half + last * last).sqrt();
        let shift = diagonal[high] - last * last / (half + if half < 0.0 { -root } else { root });
        let (mut x, mut z) = (diagonal[low] - shift, beside[low]);
        for k in low..high {
            let length = (x * x + z * z).sqrt();
            let (c, s) = if length > 0.0 { (x / length, z / length) } else { (1.0, 0.0) };
            if k > low {
                beside[k - 1] = length;
            }
            let (p, q, r) = (diagonal[k], beside[k], diagonal[k + 1]);
            diagonal[k] = c * c * p + 2.0 * c * s * q + s * s * r;
            diagonal[k + 1] = s * s * p - 2.0 * c * s * q + c * c * r;
            beside[k] = (c * c - s * s) * q + c * s * (r - p);
            if k + 1 < high {
                (x, z) = (beside[k], s * beside[k + 1]);
                beside[k + 1] *= c;
            }
            let (upper, lower) = vectors[k * n..][..2 * n].split_at_mut(n);
            for (u, v) in upper.iter_mut().zip(lower) {
                (*u, *v) = (c * *u + s * *v, c * *v - s * *u);
            }
        }
    }
    Some((diagonal, vectors))
}

/// Makes a symmetric matrix tridiagonal by reflections; returns its diagonal, what lies beside it, and the
/// basis, whose columns are its vectors.
fn tridiagonal(a: &mut [f64], n: usize) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let (mut diagonal, mut beside, mut factors) = (vec![0.0; n], vec![0.0; n], vec![0.0; n]);
    let mut product = vec![0.0; n];
    for k in 0..n {
        diagonal[k] = a[k * n + k];
        if k + 1 == n {
            break;
        }
        let (of_k, below) = a.split_at_mut((k + 1) * n);
        let v = &mut of_k[k * n + k + 1..];
        let length = dot(v, v).sqrt();
        beside[k] = if v[0] > 0.0 { -length } else { length };
        v[0] -= beside[k];
        let square = dot(v, v);
        if k + 2 == n || square == 0.0 {
            // One element needs no reflection.
            beside[k] += v[0];
            continue;
        }
        factors[k] = 2.0 / square;
        let product = &mut product[k + 1..];
        product.fill(0.0);
        for (row, x) in below.chunks(n).zip(&*v) {
            product.iter_mut().zip(&row[k + 1..]).for_each(|(sum, a)| *sum += x * a);
        }
        product.iter_mut().for_each(|x| *x *= factors[k]);
        let along = factors[k] / 2.0 * dot(product, v);
        subtract(product, along, v);
        for (i, row) in below.chunks_mut(n).enumerate() {
            let (x, y) = (v[i], product[i]);
            row[k + 1..].iter_mut().zip(product.iter().zip(&*v)).for_each(|(a, (w, v))| *a -= x * w + y * v);
        }
    }
    let mut basis = identity(n);
    let mut along = vec![0.0; n];
    for k in (0..n).rev().filter(|k| factors[*k] != 0.0) {
        let v = &a[k * n + k + 1..(k + 1) * n];
        along.fill(0.0);
        for (row, x) in basis[(k + 1) * n..].chunks(n).zip(v) {
            along.iter_mut().zip(row).for_each(|(sum, b)| *sum += x * b);
        }
        for (row, x) in basis[(k + 1) * n..].chunks_mut(n).zip(v) {
            subtract(row, factors[k] * x, &along);
        }
    }
    (diagonal, beside, basis)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A symmetric matrix of several sizes of eigenvalues.
    fn matrix(n: usize, falls: f64) -> Vec<f64> {
        let number = |i: usize, j: usize| ((i * 37 + j * 91 + i * j * 13) % 101) as f64 / 50.0 - 1.0;
        let mut out = vec![0.0; n * n];
        for (i, j, k) in (0..n * n * n).map(|place| (place / n / n, place / n % n, place % n)) {
            out[i * n + j] += number(k, i) * number(k, j) * falls.powi(k as i32);
        }
        out
    }

    #[test]
    fn eigenvectors_are_orthogonal_and_make_up_the_matrix() {
        for n in [1, 2, 3, 4, 7, 20] {
            for a in [matrix(n, 1.0), matrix(n, 0.3), identity(n), vec![0.0; n * n], vec![1.0; n * n]] {
                let (values, vectors) = eigen(a.clone(), n).unwrap();
                for (i, j) in (0..n * n).map(|place| (place / n, place % n)) {
                    let product = dot(&vectors[i * n..][..n], &vectors[j * n..][..n]);
                    assert!((product - f64::from(u8::from(i == j))).abs() < 1e-12);
                    let sum: f64 = (0..n).map(|k| values[k] * vectors[k * n + i] * vectors[k * n + j]).sum();
                    assert!((sum - a[i * n + j]).abs() < 1e-11 * (1.0 + a[i * n + i]), "{n}: {i}, {j}");
                }
            }
        }
    }

    #[test]
    fn factors_and_inverses_are_those_of_the_matrix() {
        for n in [1, 2, 5, 16] {
            let mut a = matrix(n, 0.9);
            (0..n).for_each(|i| a[i * n + i] += 0.5);
            let (lower, inverse) = (cholesky(a.clone(), n).unwrap(), inverse(a.clone(), n).unwrap());
            for (i, j) in (0..n * n).map(|place| (place / n, place % n)) {
                assert!((dot(&lower[i * n..][..n], &lower[j * n..][..n]) - a[i * n + j]).abs() < 1e-12);
                let product: f64 = (0..n).map(|k| a[i * n + k] * inverse[k * n + j]).sum();
                assert!((product - f64::from(u8::from(i == j))).abs() < 1e-9);
            }
            let mut row: Vec<f64> = (0..n).map(|i| i as f64 - 2.5).collect();
            let wanted = row.clone();
            solve_behind(&mut row, &lower);
            for (j, wanted) in wanted.iter().enumerate() {
                let product: f64 = (0..n).map(|i| row[i] * lower[i * n + j]).sum();
                assert!((product - wanted).abs() < 1e-10);
            }
        }
        assert_eq!(cholesky(vec![0.0; 4], 2), None);
        assert_eq!(inverse(vec![1.0; 4], 2), None);
        assert_eq!(inverse(vec![f64::NAN; 4], 2), None);
    }
}
