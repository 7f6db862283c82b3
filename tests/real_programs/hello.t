use Test::More tests => 2;
is(2 ** 10, 1024, 'a power');
like(`echo child`, qr/^child$/, 'a child');
