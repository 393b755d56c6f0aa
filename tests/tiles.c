/* Intel's AMX for processors without it: tiles of each thread, and the instructions that kernels use.
 * Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, "TILE..." and
 * "TDP..."; products of bfloat16 count numbers below 2^-126 as 0, as there. */
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { TILES = 8, ROWS = 16, WORDS = 16, BYTES = 4 * WORDS };

static _Thread_local int rows_of[TILES], bytes_of[TILES];
static _Thread_local union {
  int32_t sums[ROWS][WORDS];
  float floats[ROWS][WORDS];
  int8_t bytes[ROWS][BYTES];
  uint16_t halves[ROWS][BYTES / 2];
} tiles[TILES];

int tile_ldtilecfg(const uint8_t *shape) {
  for (int i = 0; i < TILES; i++) {
    bytes_of[i] = shape[16 + 2 * i] | shape[17 + 2 * i] << 8;
    rows_of[i] = shape[48 + i];
  }
  memset(tiles, 0, sizeof tiles);
  return 0;
}

int tile_tilerelease(void) {
  memset(rows_of, 0, sizeof rows_of);
  memset(bytes_of, 0, sizeof bytes_of);
  return 0;
}

int tile_tilezero(int8_t tile) {
  memset(&tiles[tile], 0, sizeof tiles[tile]);
  return 0;
}

int tile_tileloadd64(int8_t tile, const uint8_t *from, int64_t stride) {
  tile_tilezero(tile);
  for (int r = 0; r < rows_of[tile]; r++)
    memcpy(tiles[tile].bytes[r], from + r * stride, bytes_of[tile]);
  return 0;
}

int tile_tilestored64(int8_t tile, uint8_t *to, int64_t stride) {
  for (int r = 0; r < rows_of[tile]; r++) memcpy(to + r * stride, tiles[tile].bytes[r], bytes_of[tile]);
  return 0;
}

int tile_tdpbssd(int8_t into, int8_t x, int8_t w) {
  for (int m = 0; m < rows_of[into]; m++)
    for (int k = 0; k < rows_of[w]; k++)
      for (int n = 0; n < bytes_of[into] / 4; n++)
        for (int i = 0; i < 4; i++)
          tiles[into].sums[m][n] += tiles[x].bytes[m][4 * k + i] * tiles[w].bytes[k][4 * n + i];
  return 0;
}

static float flushed(float value) { return fabsf(value) < 0x1p-126f ? copysignf(0, value) : value; }

static float wide(uint16_t half) {
  uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return flushed(value);
}

int tile_tdpbf16ps(int8_t into, int8_t x, int8_t w) {
  for (int m = 0; m < rows_of[into]; m++)
    for (int n = 0; n < bytes_of[into] / 4; n++) {
      float sums[2] = {0, 0}; /* of the first and of the second numbers of all pairs */
      for (int k = 0; k < rows_of[w]; k++)
        for (int i = 0; i < 2; i++)
          sums[i] = flushed(fmaf(wide(tiles[x].halves[m][2 * k + i]), wide(tiles[w].halves[k][2 * n + i]), sums[i]));
      tiles[into].floats[m][n] = flushed(tiles[into].floats[m][n] + flushed(sums[0] + sums[1]));
    }
  return 0;
}
