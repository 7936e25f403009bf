// Constants of the vectorised exponential, shared by the instruction sets.
//
// [NOTE] exp(x) = 2^n * e^r with n = round(x / ln 2), r = x - n ln 2 in [-ln 2 / 2, ln 2 / 2].
// ln 2 is split in two (Cody and Waite): n * kLn2Hi is exact for |n| <= 2^15, as kLn2Hi has nine
// significant bits. e^r = 1 + r + r^2 (c2 + r (c3 + r (c4 + r (c5 + r c6)))); c2..c6 are our own
// fit, minimax in relative error by iteratively reweighted least squares on the interval, and give
// 3.6e-9 after rounding to fp32 (0.06 of half a unit in the last place; degree 5 would
// give 1.1e-7). What remains is the rounding of the fp32 evaluation: the measured bound is in
// docs/native.md.
#pragma once

namespace xyserve {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr float kLn2Hi = 0x1.63p-1f;
constexpr float kLn2Lo = -0x1.bd0106p-13f;
constexpr float kExpC2 = 0x1.fffffcp-2f;
constexpr float kExpC3 = 0x1.555492p-3f;
constexpr float kExpC4 = 0x1.5558f2p-5f;
constexpr float kExpC5 = 0x1.123a20p-7f;
constexpr float kExpC6 = 0x1.6a23d0p-10f;
// Below kExpMin the result is clamped (to 2^-126, or 1.2e-38): users add 1 to it, where it is lost.
// Above 88.73 the result is infinity; the clamp only keeps n in range.
constexpr float kExpMin = -87.33654f;
constexpr float kExpMax = 89.0f;

}  // namespace
}  // namespace xyserve
